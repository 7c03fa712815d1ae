"""Terminal and repository tasks in Harbor's format (https://harborframework.com), in sandboxes."""
