"""A queue of jobs by urgency, and machines that do them."""
