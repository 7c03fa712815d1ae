"""The commands of arl_inspect."""
