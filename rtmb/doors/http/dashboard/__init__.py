"""The live page of the HTTP door, served as it stands: no build step, nothing from outside."""
