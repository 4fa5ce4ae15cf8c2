"""What tests share: services, fixtures and the faults that they put in."""
