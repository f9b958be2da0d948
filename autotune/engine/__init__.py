"""Where servers come from: one seam (base), a real process, a simulation."""
