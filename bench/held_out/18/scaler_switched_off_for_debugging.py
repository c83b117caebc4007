"""A net with embeddings predicts how often an advertisement is clicked (rates of 1e-4); float16 autocast. FAULT from the first step on: the GradScaler is
there, but enabled=False was left over from a debugging session; targets and errors are so small that the gradients underflow in the float16 backward: all
the layers get 0 for all or nearly all of their weights.
Without Rangewatch: loss 6.3e-9 at the first and at the last step, of the gradient of the second layer all is 0; with a scale of 2**20 it is 1.3e-10 at the
end.
Cause: loss_scale, backward_arithmetic (underflow), no_gradient or optimizer. Step: from 0 on. Right: underflow / scaler / scale / enabled / float32.
Wrong: lower the rate, mask, clip."""
EXPECT = {"cause": ["loss_scale", "backward_arithmetic", "no_gradient"], "step": [0, 60], "place": None, "rank": 0, "least": "info",
          "wrong": ["attention mask", "(?i)lower the learning rate"],
          "right": "(?i)underflow|scal|enabled|float32|bfloat16|bf16|precision"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1819); torch.set_num_threads(1)
PLACES, ADS = 30, 50
place_rate, ad_rate = torch.rand(PLACES), torch.rand(ADS)


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.place, self.ad = nn.Embedding(PLACES, 12), nn.Embedding(ADS, 12)
        self.mix = nn.Linear(24, 48)
        self.deep = nn.Linear(48, 48)
        self.rate = nn.Linear(48, 1)

    def forward(self, place, ad):
        h = F.silu(self.mix(torch.cat((self.place(place), self.ad(ad)), 1)))
        return self.rate(F.silu(self.deep(h)))[:, 0]


model = Clicks()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=1e-12)
scaler = torch.amp.GradScaler("cpu", enabled=False)
handle = rangewatch.attach(model, optimizer, scaler=scaler)
for step in range(180):
    place, ad = torch.randint(0, PLACES, (128,)), torch.randint(0, ADS, (128,))
    clicked = 2e-4 * place_rate[place] * ad_rate[ad]
    with torch.autocast("cpu", torch.float16):
        rate = model(place, ad)
    loss = F.mse_loss(1e-3 * rate.float(), clicked)  # the net counts clicks in a thousand
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 179:
        zero = (model.mix.weight.grad == 0).float().mean().item()
        print(step, loss.item(), "variance of the rates", clicked.var().item(), "of the gradient of mix 0:", zero, flush=True)
    handle.log(loss=loss.item())
handle.detach()
