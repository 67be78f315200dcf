"""The formats that papers, data sets and tools publish rubrics in, one module each."""
