"""Files of a landing on any fsspec filesystem: visible only when complete, and replaced conditionally."""
