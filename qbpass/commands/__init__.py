"""The commands, one a file.

What is heavy (onnx, ONNX Runtime, torch) is imported when a command runs, so that help is instant.
"""
