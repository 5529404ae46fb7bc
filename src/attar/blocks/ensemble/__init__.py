"""The clients' nets as one teacher."""
