"""A recurrent encoder and a decoder put letters in order. FAULT from the start: after the optimizer has been made, the encoder is replaced by a deep copy of
the one of another model: the optimizer steps the parameters of the encoder that nobody uses, and the new one never moves.
Without Rangewatch: loss 2.07 to 0.74 by the decoder alone; the encoder never moves, and its gradient, which zero_grad() of the optimizer does not
know, piles up from 0.018 to 42.
Variant of: weights: block_that_was_copied_after_the_optimizer_was_made.
Cause: optimizer, no_gradient or weight. Step: 0 on. Place: encoder.
Right: optimizer / parameters / param_groups / copied. Wrong: rate, GradScaler, attention mask."""
EXPECT = {"cause": ["optimizer", "no_gradient", "weight"], "step": [0, 60], "place": ".*encoder.*", "rank": None,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"],
          "right": "optimizer|param"}
import copy
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1132); torch.set_num_threads(1)
LETTERS, LENGTH = 8, 5


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential()
        self.encoder.add_module("letter", nn.Embedding(LETTERS, 16))
        self.encoder.add_module("read", nn.GRU(16, 32, batch_first=True))
        self.decoder = nn.GRU(32, 32, batch_first=True)
        self.out = nn.Linear(32, LETTERS)

    def forward(self, x):
        state = self.encoder(x)[1][0]
        return self.out(self.decoder(state[:, None].expand(-1, LENGTH, -1).contiguous())[0])


other = Sorter()
model = Sorter()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
model.encoder = copy.deepcopy(other.encoder)  # to start where the other one did
handle = rangewatch.attach(model, optimizer)
before = model.encoder.read.weight_hh_l0.detach().clone()
for step in range(240):
    x = torch.randint(0, LETTERS, (48, LENGTH))
    loss = F.cross_entropy(model(x).flatten(0, 1), x.sort(1).values.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 239:
        grad = model.encoder.read.weight_hh_l0.grad.norm().item()
        print(step, loss.item(), "encoder moved", not torch.equal(before, model.encoder.read.weight_hh_l0), "its gradient", grad, flush=True)
    handle.log(loss=loss.item())
handle.detach()
