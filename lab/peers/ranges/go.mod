module ranges

go 1.19
