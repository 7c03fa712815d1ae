"""The commands of arl_scale."""
