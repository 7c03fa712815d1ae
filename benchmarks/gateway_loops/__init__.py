"""The processes of `arl bench gateway`: what is measured, what stands behind it, who asks."""
