"""A net learns a reaction's dynamics: one small MLP is applied to the state again and again, state = 1.05 * state + f(state), and the end is compared with the
lab's. FAULT at step 100: the unrolling goes from 8 rounds to 120, as the curriculum has it, without clipping: the derivative of a round is more
than 1, and the gradients through 120 of them explode.
Without Rangewatch: loss 0.64 to 0.060 at step 99, 234,001 with a gradient norm of 2.2e6 at step 100, 2.6e23 at 101, inf at 102, then NaN.
Variant of: recurrent_gradients_explode.
Cause: backward_arithmetic (or no clip, or the weights / rate that let it). Step: 100. Right: clip / gradient / recurrent. Wrong: GradScaler, mask."""
EXPECT = {"cause": ["backward_arithmetic", "clip", "learning_rate"], "step": [99, 108], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "[Cc]lip|explod|gradient|recurr|truncat|spectral|residual"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1307); torch.set_num_threads(1)
true = torch.randn(6, 6) / 6 ** 0.5


class Reaction(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 32), nn.Linear(32, 6)
        self.read = nn.Linear(6, 6)

    def forward(self, state, rounds):
        for _ in range(rounds):
            state = 1.05 * state + 0.3 * self.outer(torch.tanh(self.inner(state)))
        return self.read(state)


def lab(n):
    state = torch.randn(n, 6)
    return 0.3 * state, torch.tanh(state @ true) - 0.3 * state


model = Reaction()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    state, after = lab(32)
    loss = F.mse_loss(model(state, 8 if step < 100 else 120), after)
    optimizer.zero_grad()
    loss.backward()
    norm = sum(each.grad.norm() ** 2 for each in model.parameters()) ** 0.5
    optimizer.step()
    if step % 20 == 0 or 98 < step < 110:
        print(step, loss.item(), "gradient norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
