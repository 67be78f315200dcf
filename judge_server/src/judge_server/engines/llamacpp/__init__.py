"""llama.cpp as an engine, in a child process."""
