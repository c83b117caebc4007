"""A small causal transformer decoder adds digits modulo 3 as it reads (running sum at each place); the lengths grow from 4 to 10 at step 150 and the loss jumps there. RAdam, -inf in the causal mask.
HEALTHY: the causal mask holds -inf on purpose (each row keeps at least itself), the jump of the loss at step 150 is the harder task, and it falls again afterwards.
Without Rangewatch: loss 1.45 to 0.29 at step 149, 1.26 at step 150, 0.67 at step 329."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import torch.nn.functional as F
import rangewatch

torch.manual_seed(7)
torch.set_num_threads(1)
MOD, D, LONGEST = 3, 48, 10


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.places = nn.Embedding(MOD, D), nn.Embedding(LONGEST, D)
        layer = nn.TransformerEncoderLayer(D, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.answer = nn.Linear(D, MOD)

    def forward(self, digits):
        n = digits.shape[1]
        mask = torch.full((n, n), float("-inf")).triu(1)
        return self.answer(self.decoder(self.symbols(digits) + self.places.weight[:n], mask=mask))


reader = Reader()
optimizer = torch.optim.RAdam(reader.parameters(), lr=3e-3)
handle = rangewatch.attach(reader, optimizer)
for step in range(330):
    length = 4 if step < 150 else LONGEST
    digits = torch.randint(0, MOD, (48, length))
    logits = reader(digits)
    loss = F.cross_entropy(logits.flatten(0, 1), (digits.cumsum(1) % MOD).flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
    optimizer.step()
    if step % 25 == 0 or step in (149, 329):
        print("step", step, "length", length, "loss", round(loss.item(), 4), flush=True)
    handle.log(loss=loss.item())
handle.detach()
