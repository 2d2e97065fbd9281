"""One module for each parser: `check(data)` holds its properties for any bytes, `seeds()` are what to begin with."""
