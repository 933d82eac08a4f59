// A scale for link probabilities that shows their differences: from the lowest to the highest, by factors where they
// are far apart. Probabilities of 0 and 1 alone, as of fixed topologies, keep a scale from 0 to 1.

const FAR_APART = 10; // times
const LEAST_RANGE = 0.005; // below it, all links count as equally probable
const TICKS = 5;

export function makeChanceScale(matrix) {
  const known = matrix.flat().filter((value) => value !== null);
  const positive = known.filter((value) => value > 0);
  const [low, high] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 1];
  if (positive.length && Math.max(...positive) / Math.min(...positive) > FAR_APART) return byFactors(positive, low === 0);
  if (high - low < LEAST_RANGE) return { ...straight(0, Math.max(high, LEAST_RANGE)), words: "Colours from 0, as all are alike." };
  return { ...straight(low, high), words: `Colours from the lowest, ${decimals(low, high - low)}, to the highest, ${decimals(high, high - low)}.` };
}

function straight(low, high) {
  const at = Array.from({ length: TICKS }, (_, index) => index / (TICKS - 1));
  const range = high - low;
  return { place: (value) => (value - low) / range, ticks: at.map((share) => [share, decimals(low + share * range, range)]), digits: digitsFor(range) };
}

function byFactors(positive, hasZero) {
  const [low, high] = [Math.log(Math.min(...positive)), Math.log(Math.max(...positive))];
  const floor = hasZero ? 0.08 : 0; // 0 has no logarithm: it is the palest shade
  const place = (value) => (value > 0 ? floor + ((1 - floor) * (Math.log(value) - low)) / (high - low) : 0);
  const values = Array.from({ length: TICKS }, (_, index) => Math.exp(low + (index / (TICKS - 1)) * (high - low)));
  const ticks = values.map((value) => [place(value), value.toPrecision(2)]);
  return { place, ticks: hasZero ? [[0, "0"], ...ticks] : ticks, digits: 3, words: "Colours by factors (logarithmic)." };
}

const digitsFor = (range) => (range < 0.1 ? 3 : 2);

const decimals = (value, range) => value.toFixed(digitsFor(range));
