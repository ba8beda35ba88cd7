"""`vramcast demo`: runs the service on a simulated cluster and schedules a scripted day of training pods."""
