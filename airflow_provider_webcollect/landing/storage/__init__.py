"""Files of a landing on any filesystem of fsspec: whole or not there, and replaced only on a condition."""
