"""Where the attempts of a study's trials are performed: on this node, or on the nodes of a Ray cluster."""
