"""The training loops that `arl bench trainer` compares."""
