// Numbers for people: few digits, always with a unit.

const kBinary = ["B", "KiB", "MiB", "GiB", "TiB"];
const kDecimal = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"];

// Three significant digits, no more than that many behind the point.
export function short(value) {
  const size = Math.abs(value);
  if (size >= 100 || value === 0) return Math.round(value).toString();
  return value.toFixed(size >= 10 ? 1 : 2);
}

export function scaled(value, units, step) {
  let i = 0;
  while (value >= step && i + 1 < units.length) {
    value /= step;
    ++i;
  }
  return { value: i === 0 ? Math.round(value).toString() : short(value), unit: units[i] };
}

export const bytes = (value) => scaled(value, kBinary, 1024);
export const rate = (value) => scaled(value, kDecimal, 1000);

// "1.20 of 2.00 GiB", in the unit of the whole.
export function bytesOf(part, whole) {
  let unit = 0;
  let divisor = 1;
  while (whole / divisor >= 1024 && unit + 1 < kBinary.length) {
    divisor *= 1024;
    ++unit;
  }
  return `${short(part / divisor)} of ${short(whole / divisor)} ${kBinary[unit]}`;
}

export function seconds(value) {
  if (value < 1) return { value: short(value * 1000), unit: "ms" };
  if (value < 120) return { value: short(value), unit: "s" };
  return { value: short(value / 60), unit: "min" };
}

export const percent = (share) => {
  const value = share * 100;
  if (value === 100 || value === 0) return `${value} %`;
  return `${Math.min(99.9, Math.max(0.1, value)).toFixed(value > 99 || value < 10 ? 1 : 0)} %`;
};

// 12345 -> "12 345", with a narrow space.
export const count = (value) => Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");

export const text = ({ value, unit }) => `${value} ${unit}`;
