module gotls

go 1.24
