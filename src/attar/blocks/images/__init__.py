"""Images made at the server, and the pool that holds them."""
