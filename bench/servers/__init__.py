"""The servers that are measured: started, watched, and in trouble."""
