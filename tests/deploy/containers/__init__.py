"""Tests that build the images and run them with podman; every one has the marker `containers`."""
