"""Boot the kernels of distributions in QEMU, and try Cove on each: `make kernels`."""
