"""Planning a cluster before it is used, and diagnosing a slow one."""
