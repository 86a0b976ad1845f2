"""exllamav2 in the process: EXL2 (and plain safetensors) folders on CUDA."""
