"""The commands of arl_audit."""
