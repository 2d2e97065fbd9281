"""What Cove costs, every figure beside a floor measured in the same run."""
