/** The mark of Cove: a bay that the sea reaches and the wind does not. */

export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 24 24" aria-hidden="true">
      <path d="M20.5 7.2A9.6 9.6 0 1 0 20.5 16.8" />
      <path d="M8.2 12.4c1.5-1.5 3-1.5 4.5 0s3 1.5 4.5 0 3-1.5 4.5 0" />
    </svg>
  );
}
