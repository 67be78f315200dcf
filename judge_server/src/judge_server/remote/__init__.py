"""Judges in other processes: the api's executor and client for them, and the application they serve."""
