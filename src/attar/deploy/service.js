"use strict";
// Sends chosen or dropped images to this server and shows the page's answers, newest above.
const form = document.querySelector("form");
const files = document.querySelector("input[type=file]");
const drop = document.querySelector(".drop");
const status = document.querySelector("#status");
const answers = document.querySelector("#answers");
document.querySelector("button").hidden = true;

function say(text, wrong = false) {
  status.textContent = text;
  status.classList.toggle("wrong", wrong);
}

async function classify(chosen) {
  const images = [...chosen];
  if (!images.length) return;
  const total = images.reduce((sum, file) => sum + file.size, 0);
  if (images.length > Number(form.dataset.images))
    return say(`At most ${form.dataset.images} images at once; these are ${images.length}.`, true);
  if (total > Number(form.dataset.bytes))
    return say("Together these images are too large. Send fewer at once.", true);
  say(images.length === 1 ? `Looking at ${images[0].name} …` : `Looking at ${images.length} images …`);
  const body = new FormData();
  for (const file of images) body.append("image", file, file.name);
  try {
    const reply = await fetch(form.action, { method: "POST", body, headers: { Accept: "text/html" } });
    const text = await reply.text();
    const page = new DOMParser().parseFromString(text, "text/html");
    const cards = page.querySelectorAll(".card");
    if (!cards.length) return say(page.querySelector("main")?.textContent || "The server gave no answer.", true);
    let list = answers.querySelector(".cards");
    if (!list) {
      list = document.createElement("ol");
      list.className = "cards";
      answers.append(list);
    }
    list.prepend(...cards);
    form.classList.add("used");
    say("");
  } catch {
    say("The server cannot be reached.", true);
  } finally {
    files.value = "";
  }
}

files.addEventListener("change", () => classify(files.files));
form.addEventListener("submit", (event) => {
  event.preventDefault();
  classify(files.files);
});
for (const kind of ["dragenter", "dragover"])
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
for (const kind of ["dragleave", "drop"])
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    if (kind === "drop" || !event.relatedTarget) drop.classList.remove("over");
  });
document.addEventListener("drop", (event) => classify(event.dataTransfer.files));
document.addEventListener("paste", (event) => classify(event.clipboardData.files));
