"""Share groups of KIP-932: several members read one partition, record by record."""
