"""The web console: its pages, its sessions in browsers, and the live list that it shows."""
