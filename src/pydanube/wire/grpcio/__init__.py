"""The engine that carries calls with grpcio."""
