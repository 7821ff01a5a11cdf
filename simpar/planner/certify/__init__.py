"""The certificate: a frontier of bounded rows, branch and bound over it, exact steps, and the certificate's scope."""
