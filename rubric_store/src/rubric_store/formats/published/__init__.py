"""The formats that papers, data sets and tools publish rubrics in, those of one shape in one module."""
