"""Images: software of one's own, as layers and a configuration, from archives, directories and registries."""
