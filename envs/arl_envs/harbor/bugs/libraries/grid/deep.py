"""Powers, determinants and paths."""

from .basic import identity, multiply, shape


def power(matrix, exponent):
    """Return the matrix times itself, `exponent` times."""
    result = identity(len(matrix))
    while exponent > 0:
        if exponent % 2 == 1:
            result = multiply(result, matrix)
        matrix = multiply(matrix, matrix)
        exponent = exponent // 2
    return result


def minor(matrix, row, column):
    """Return the matrix without a row and a column."""
    kept = matrix[:row] + matrix[row + 1 :]
    return [line[:column] + line[column + 1 :] for line in kept]


def determinant(matrix):
    """Return the determinant; raise ValueError unless the matrix is square."""
    rows, columns = shape(matrix)
    if rows != columns:
        raise ValueError("not square")
    if rows == 0:
        return 1
    total = 0
    for column in range(columns):
        sign = -1 if column % 2 == 1 else 1
        total += sign * matrix[0][column] * determinant(minor(matrix, 0, column))
    return total


def cheapest_path(costs):
    """Return the least cost from the top left to the bottom right, by steps right or down."""
    best = []
    for row, line in enumerate(costs):
        for column, cost in enumerate(line):
            ways = []
            if row > 0:
                ways.append(best[column])
            if column > 0:
                ways.append(best[column - 1])
            total = cost + min(ways, default=0)
            if row == 0:
                best.append(total)
            else:
                best[column] = total
    return best[-1]
