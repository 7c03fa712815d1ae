"""What `arl bench trainer` compares: training loops."""
