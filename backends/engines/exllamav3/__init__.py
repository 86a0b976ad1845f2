"""exllamav3 in the process: EXL3 (and plain safetensors) folders on CUDA."""
