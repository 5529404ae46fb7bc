// Renders every formula of the page. One that KaTeX cannot read is shown as red source (class katex-error).
document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll("span.math, div.math > .formula")) {
    katex.render(place.textContent, place, {
      displayMode: place.classList.contains("formula"),
      throwOnError: false,
    });
  }
});
