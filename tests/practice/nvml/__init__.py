"""A stand-in for the NVIDIA driver's libnvidia-ml.so.1: what pynvml needs, with its numbers from a folder of files."""
