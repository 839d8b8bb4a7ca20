// Tokens and words: an axis of the data is {tokens, words, word_of}.

export function words(axis) {
  return axis.words;
}

// A matrix over tokens as one over words: columns are summed, rows averaged over the tokens of a word.
export function merged(matrix, rows, columns) {
  const tall = rows.words.length;
  const wide = columns.words.length;
  const sums = new Float64Array(tall * wide);
  const counts = new Float64Array(tall);
  for (let row = 0; row < matrix.rows; row += 1) {
    counts[rows.word_of[row]] += 1;
    for (let column = 0; column < matrix.columns; column += 1) {
      sums[rows.word_of[row] * wide + columns.word_of[column]] += matrix.at(row, column);
    }
  }
  return { rows: tall, columns: wide, at: (row, column) => sums[row * wide + column] / (counts[row] || 1) };
}

// Whether words say more than tokens: there are several, and fewer than tokens.
export function wordsHelp(...axes) {
  return axes.every((axis) => axis.words.length > 2) && axes.some((axis) => axis.words.length < axis.tokens.length);
}
