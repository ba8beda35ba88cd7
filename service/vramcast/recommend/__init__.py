"""From what pods took on their GPUs to what they should ask for. Pure: `cli/recommend` asks Prometheus and prints."""
