"""Sums, products and turns of matrices."""


def shape(matrix):
    """Return the numbers of rows and columns; raise ValueError for rows of unequal length."""
    columns = len(matrix[0]) if matrix else 0
    if any(len(row) != columns for row in matrix):
        raise ValueError("rows of unequal length")
    return len(matrix), columns


def identity(size):
    """Return the matrix that changes nothing."""
    return [[1 if row == column else 0 for column in range(size)] for row in range(size)]


def add(first, second, factor=1):
    """Return first + factor * second; raise ValueError for different shapes."""
    if shape(first) != shape(second):
        raise ValueError("different shapes")
    total = []
    for row, other in zip(first, second, strict=True):
        total.append([a + factor * b for a, b in zip(row, other, strict=True)])
    return total


def multiply(first, second):
    """Return the product; raise ValueError if the shapes do not fit."""
    rows, inner = shape(first)
    height, columns = shape(second)
    if inner != height:
        raise ValueError("shapes do not fit")
    product = []
    for row in range(rows):
        line = []
        for column in range(columns):
            total = 0
            for place in range(inner):
                total += first[row][place] * second[place][column]
            line.append(total)
        product.append(line)
    return product


def transpose(matrix):
    """Return the matrix with rows and columns exchanged."""
    rows, columns = shape(matrix)
    return [[matrix[row][column] for row in range(rows)] for column in range(columns)]


def rotate(matrix):
    """Return the matrix turned to the right by a quarter."""
    return [row[::-1] for row in transpose(matrix)]
