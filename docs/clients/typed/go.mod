module delaytasks-rest-example

go 1.19
