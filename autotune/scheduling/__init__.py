"""Who gets which GPUs, ports and cores of a node, and which trials run beside each other."""
