module yurttunnel/benchmarks/driver

go 1.22
